// Package monitoring tests nodes with the programs that people watch them with: metrics-server for
// kubectl top and the HorizontalPodAutoscaler, and Prometheus with the rules and dashboards of
// kubernetes-mixin, and with the chart's alerts and dashboard. promtool checks what each endpoint says.
// One node is local and one is managed over SSH.
//
// The test takes about twenty minutes, so it runs on request: make monitoring. testdata has the
// queries and rules, with their source. With BOWLINE_MONITORING_WRITE=1 the test writes what each
// query returned into docs.
package monitoring

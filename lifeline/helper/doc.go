// Package helper is the end of a lifeline in a pod on the remote host. It gives the pods of that host the
// network of the cluster, over a wire.Session with the exit in Bowline's process:
//
//	pod ── connect 10.96.0.1:443 ──▶ nftables (rules) ── redirect ──▶ helper ── wire.Session ──▶ exit
//	                                                                    │
//	                                                                    ├─▶ a backend on this host
//	                                                                    └─▶ dnscache
//
// The exit sends a wire.Table. The helper decides by it alone (decide): a Service that has a backend on this
// host is served here, also while there is no session; everything else goes to the exit.
//
// TCP is carried to every address of the cluster. The kernel accepts the pod's connection before the exit has
// dialed, so a refused one is reset after connect has succeeded. Half-close and resets are carried in both
// directions.
//
// UDP is carried to the Services of the table and to the cluster's DNS, each of which has a listener of its own:
// a socket learns the original destination of a TCP connection from the kernel, but not that of a datagram.
// Datagrams to other addresses of the cluster, such as pods behind a headless Service, are not redirected;
// they follow the routes of the host. A datagram may be lost where UDP loses it too, and while there is no
// session. ICMP and SCTP are not carried.
package helper

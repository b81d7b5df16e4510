#!/usr/bin/env bash
# Generates manifests from the chart: deploy/kubernetes for users without helm, and for the tests of
# charts an example with every value set, one of the profile localSocket, two without hooks, for
# tools that render without a cluster, and the objects of each value that enables monitoring.
#
#   hack/manifests.sh [--check]
#
# With --check it writes nothing; it shows outdated files and fails.
set -euo pipefail
cd "$(dirname "$0")/.."

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
hack/helm.sh lint --quiet charts/bowline
# Joins the documents, without helm's comments on their sources.
tidy() { grep -v '^# Source: ' | awk '!/^$/ && !(/^---$/ && last ~ /^---$/); !/^$/ {last = $0}'; }

{
	echo "# Generated from charts/bowline by hack/manifests.sh, with the values of values.yaml."
	cat deploy/kubernetes/namespace.yaml
	# Removes the parts that only helm uses: its hooks, and its labels.
	hack/helm.sh template bowline charts/bowline --namespace bowline --values deploy/kubernetes/values.yaml --include-crds --no-hooks |
		grep -vE '^ +(app.kubernetes.io/managed-by|helm.sh/chart): '
} | tidy >"$out/bowline.yaml"
hack/helm.sh template example charts/bowline --namespace machines --values charts/testdata/example-values.yaml | tidy >"$out/example.yaml"
hack/helm.sh template bowline-local charts/bowline --namespace local --values charts/testdata/local-values.yaml | tidy >"$out/local.yaml"
hack/helm.sh template bowline charts/bowline --namespace bowline --values charts/testdata/gitops-values.yaml | tidy >"$out/gitops.yaml"
hack/helm.sh template bowline-local charts/bowline --namespace local --values charts/testdata/local-values.yaml --set hooks.enabled=false | tidy >"$out/gitops-local.yaml"
for part in podMonitor prometheusRule dashboard; do
	hack/helm.sh template example charts/bowline --namespace machines --show-only templates/monitoring.yaml --set "monitoring.$part.enabled=true" \
		--set "monitoring.$part.labels.release=kube-prometheus-stack" | tidy >"$out/monitoring-$part.yaml"
done

in_step=yes
put() { # FILE DESTINATION
	if [ "${check:-}" = yes ]; then
		diff -u "$2" "$1" || in_step=no
	else
		cmp -s "$1" "$2" || { cp "$1" "$2"; echo "wrote $2"; }
	fi
}
[ "${1:-}" = --check ] && check=yes
put "$out/bowline.yaml" deploy/kubernetes/bowline.yaml
put "$out/example.yaml" charts/testdata/example.yaml
put "$out/local.yaml" charts/testdata/local.yaml
put "$out/gitops.yaml" charts/testdata/gitops.yaml
put "$out/gitops-local.yaml" charts/testdata/gitops-local.yaml
for part in podMonitor prometheusRule dashboard; do put "$out/monitoring-$part.yaml" "charts/testdata/monitoring-$part.yaml"; done
[ $in_step = yes ] || { echo "hack/manifests.sh fixes it" >&2; exit 1; }

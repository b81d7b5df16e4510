#!/usr/bin/env bash
# Builds metrics-server from its module in lab/monitoring, and unpacks Prometheus, promtool and the
# node exporter from Debian's packages. None of their scripts runs and no service starts.
#
#   hack/monitoring-build.sh
#
# Programs go to $BOWLINE_CACHE/monitoring.
set -euo pipefail
cd "$(dirname "$0")/.."

out=${BOWLINE_CACHE:-/var/cache/bowline}/monitoring
mkdir -p "$out"
CGO_ENABLED=0 go build -C lab/monitoring -trimpath -buildvcs=false -ldflags '-s -w' -o "$out/metrics-server" sigs.k8s.io/metrics-server/cmd/metrics-server
[ ! -x "$out/prometheus" ] || exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
echo "unpacking Debian's Prometheus"
(cd "$work" && apt-get -qq -o APT::Sandbox::User=root download prometheus prometheus-node-exporter)
for package in "$work"/*.deb; do dpkg-deb -x "$package" "$work/root"; done
cp "$work"/root/usr/bin/{prometheus-node-exporter,promtool,prometheus} "$out/"

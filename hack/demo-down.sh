#!/usr/bin/env bash
# Removes the demo: Bowline, the cluster, and everything that they created, even if parts of it are
# broken.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/demo-lib.sh

if [ ! -e "$dir" ]; then
  echo "there is no demo in $dir"
  exit 0
fi
if running; then
  stop_bowline
  echo "Bowline (process $pid) has ended"
fi
# The pods' containers are in the host's cgroup, and end with it.
if [ -x "$bowline" ]; then lab down; else "${BOWLINE_CACHE:-/var/cache/bowline}/bin/bowline-lab" --dir "$dir" down; fi
echo "the built programs stay in ${BOWLINE_CACHE:-/var/cache/bowline} and bin for the next time"

# The functions and settings that hack/demo.sh and hack/demo-down.sh share.
dir=${BOWLINE_DEMO_DIR:-/var/lib/bowline-demo}
bowline=$PWD/bin/bowline
own=$dir/bowline # Bowline's files: configuration, process, log

if [ "$(id -u)" != 0 ]; then
  echo "the demo creates namespaces, network interfaces and mounts, which needs root: sudo make ${MAKECMDGOALS:-demo}" >&2
  exit 1
fi
# sudo's PATH lacks the usual directory of Go.
command -v go >/dev/null || PATH=$PATH:/usr/local/go/bin

bold= dim= plain=
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\033[1m' dim=$'\033[2m' plain=$'\033[0m'; fi
step() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }

lab() { "$bowline" lab --dir "$dir" "$@"; }

# born PID: prints when the process started, in clock ticks since the boot, because a process ID may
# have been recycled. It prints nothing for a process that is dead or a zombie.
born() {
  local stat
  stat=$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) || return 0
  case $stat in Z* | X*) ;; *) cut -d' ' -f20 <<<"$stat" ;; esac
}

# running: whether the process that hack/demo.sh started still runs. Sets pid.
running() {
  local since
  [ -r "$own/process" ] && read -r pid since <"$own/process" && [ -n "$since" ] && [ "$(born "$pid")" = "$since" ]
}

# stop_bowline ends it and waits; its containers keep running.
stop_bowline() {
  running || return 0
  kill "$pid" 2>/dev/null || return 0
  for _ in $(seq 100); do
    running || return 0
    sleep 0.1
  done
  kill -9 "$pid" 2>/dev/null || true
}

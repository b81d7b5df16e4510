# removeslice STOP SETTINGS KILL DIR...: stops a slice. That would stop the processes in it, so
# the script first waits a second for processes that are about to end, and kills the rest if
# KILL is yes.
stop=$1 settings=$2 kill=$3
shift 3
left=
for dir; do
	[ ! -d "$dir" ] || left=$dir
done
[ -n "$left" ] || exit 0
rounds=0
while :; do
	pids=$(find "$@" -name cgroup.procs -exec cat {} + 2>/dev/null | sort -u | tr '\n' ' ') || :
	[ -n "${pids% }" ] || break
	rounds=$((rounds + 1))
	if [ "$rounds" -gt 10 ]; then
		[ "$kill" = yes ] || fail "remove cgroup $left: processes ${pids% } are still in it: Device or resource busy"
		# 0 is a process of another PID namespace; `kill 0` would kill ourselves.
		for pid in $pids; do
			[ "$pid" -le 1 ] || kill -KILL "$pid" 2>/dev/null || :
		done
		kill=no rounds=0
	fi
	sleep 0.1 2>/dev/null || sleep 1
done
systemd "$stop" || case $said in
*"not loaded"*) ;;
*) fail "systemd failed to stop the slice: $said" ;;
esac
rm -rf -- "$settings"
set -- no "$@"

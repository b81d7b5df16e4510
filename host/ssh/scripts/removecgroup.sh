# removecgroup KILL DIR...: removes cgroups and those below them. It waits a second for
# processes that are about to end. If KILL is yes, it then kills them and waits once more.
kill=$1
shift
# Most cgroups have no other below them.
rmdir -- "$@" 2>/dev/null || :
rounds=0
while :; do
	left=
	for dir; do
		[ ! -d "$dir" ] || left=$dir
	done
	[ -n "$left" ] || exit 0
	find "$@" -depth -type d -exec rmdir -- {} + 2>/dev/null || :
	[ -d "$left" ] || continue
	rounds=$((rounds + 1))
	if [ "$rounds" -gt 10 ]; then
		pids=$(find "$@" -name cgroup.procs -exec cat {} + 2>/dev/null | sort -u | tr '\n' ' ') || :
		[ "$kill" = yes ] || {
			[ -z "${pids% }" ] || fail "remove cgroup $left: processes ${pids% } are still in it: Device or resource busy"
			exec rmdir -- "$left"
		}
		# 0 is a process of another PID namespace; `kill 0` would kill ourselves.
		for pid in $pids; do
			[ "$pid" -le 1 ] || kill -KILL "$pid" 2>/dev/null || :
		done
		kill=no rounds=0
	fi
	sleep 0.1 2>/dev/null || sleep 1
done

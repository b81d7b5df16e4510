# fence SSHD SINCE: ends the connection that the process SSHD, begun at SINCE, carries
# or carried, with all that was begun over it, and returns when nothing of it runs any
# more. What it leaves alone is $self, where that is one of them. 0 is nobody's number.
#
# The requests of a shell bear BOWLINE_CONNECTION in their environment, and so are
# found when their sshd has gone as well; all others descend from it.
fence() {
	[ "$1" -gt 1 ] || return 0
	stopped= left=40
	while members "$1" "$2"; do
		# They are stopped until no new one appears, as who runs may fork; killed then.
		if [ "$members" != "$stopped" ]; then
			kill -STOP $members 2>/dev/null || :
			stopped=$members
			continue
		fi
		kill -KILL $members 2>/dev/null || :
		[ "$left" -gt 0 ] || fail "processes of the former driver do not end: $members"
		left=$((left - 1))
		sleep 0.1 2>/dev/null 9>&- || sleep 1 9>&-
	done
}

# members SSHD SINCE: sets $members; false if there are none.
members() {
	alive= members=' '
	# A process that ends meanwhile costs cat its exit code.
	lines=$(cat /proc/[0-9]*/stat 2>/dev/null 9>&-) || :
	tagged=$(grep -lsF "BOWLINE_CONNECTION=$1.$2." /proc/[0-9]*/environ 2>/dev/null 9>&-) || :
	for file in $tagged; do
		file=${file#/proc/}
		members="$members${file%/environ} "
	done
	sshd_pid=$1 sshd_since=$2 ifs=$IFS
	IFS='
'
	set -f
	for stat in $lines; do
		IFS=$ifs
		pid=${stat%% *}
		set -- ${stat##*) }
		[ "$#" -ge 20 ] && [ "$1" != Z ] || continue
		alive="$alive $pid:$2"
		[ "$pid" != "$sshd_pid" ] || [ "${20}" != "$sshd_since" ] || members="$members$pid "
	done
	set +f
	IFS=$ifs
	grown=yes
	while [ -n "$grown" ]; do
		grown=
		for one in $alive; do
			pid=${one%:*}
			case $members in
			*" $pid "*) ;;
			*" ${one#*:} "*)
				[ "$pid" != "$self" ] || continue
				members="$members$pid " grown=yes
				;;
			esac
		done
	done
	# The dead have no environment, but may have been read before they died.
	all=$members members=
	for one in $alive; do
		pid=${one%:*}
		case $all in
		*" $pid "*) [ "$pid" = "$self" ] || members="$members $pid" ;;
		esac
	done
	[ -n "$members" ]
}

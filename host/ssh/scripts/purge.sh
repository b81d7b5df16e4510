# recorded FILE: sets $holder_recorded, $began_recorded, $sshd_recorded and $since_recorded to
# the process and the connection that FILE, the record beside a lock, names. All are empty if
# there is no record, or only zero bytes: the host lost its power before they were on the disk,
# and all processes with it. A record that it cannot read may name a connection that still acts
# on the host, so it fails.
recorded() {
	holder_recorded= began_recorded= sshd_recorded= since_recorded=
	[ -s "$1" ] || return 0
	record=$(tr -d '\0' <"$1" 2>/dev/null 9>&-) || fail "cannot read $1"
	set -f
	set -- "$1" $record
	set +f
	case $#:${2-} in
	1:) return 0 ;;
	6:v1) ;;
	*:v1) fail "$1 does not name a process. Remove it if no Bowline manages the host" ;;
	*:v[0-9]*) fail "$1 has version $2, and this version of Bowline reads v1. Upgrade Bowline" ;;
	*) fail "$1 does not name a process. Remove it if no Bowline manages the host" ;;
	esac
	case $3$4$5$6 in
	*[!0-9]*) fail "$1 does not name a process. Remove it if no Bowline manages the host" ;;
	esac
	holder_recorded=$3 began_recorded=$4 sshd_recorded=$5 since_recorded=$6
}

# purge SSHD SINCE: kills the sshd process SSHD, started at SINCE, if it still runs, and
# every process that was started over its connection. It returns when none of them runs
# any more. It spares $self if that is one of them. For SSHD 0 it does nothing.
#
# The requests of a shell have BOWLINE_CONNECTION in their environment, so purge finds
# them even if their sshd has exited; all others are descendants of that sshd. Any user
# of the host can set that variable, and can give a process any name. So the variable
# counts only in a process of root or of the login user, and the process ID is taken
# from the directory name in /proc.
purge() {
	[ "$1" -gt 1 ] || return 0
	login=${SUDO_UID:-$(id -u 9>&-)}
	spare "$1" "$2"
	# Without -z, busybox's grep sees only the first variable of an environment.
	nul=z
	printf 'a\0b\0' | grep -qzF b 2>/dev/null || nul=
	stopped= left=40
	while members "$1" "$2"; do
		# A running process may fork: stop them until no new one appears, then kill them.
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

# spare SSHD SINCE: sets $spared to the processes that are never members: process 1 and
# our ancestors. If the connection is ours, ancestors that were started over it are not
# spared.
spare() {
	spared=' 1 '
	read -r up rest </proc/self/stat
	while [ "$up" -gt 1 ]; do
		behind_name "$up"
		if [ "$up" = "$1" ] && [ "$start" = "$2" ]; then
			spared=' 1 '
		else
			spared="$spared$up "
		fi
		up=$parent
	done
}

# behind_name PID: sets $parent and $start, both 0 if there is no such process. The name
# may contain brackets and newlines; the fields after the last bracket are the kernel's.
behind_name() {
	parent=0 start=0 line=
	while read -r text; do
		line=$text
	done 2>/dev/null <"/proc/$1/stat" || return 0
	set -- ${line##*) }
	[ "$#" -ge 20 ] || return 0
	parent=$2
	shift 19
	start=$1
}

# believed PID: whether root or the login user set its environment. The owner of the
# directory in /proc does not show it: it is root for processes that cannot be dumped.
believed() {
	while read -r key real rest; do
		[ "$key" != Uid: ] || break
	done 2>/dev/null <"/proc/$1/status" || return 1
	[ "$key" = Uid: ] || return 1
	[ "$real" = 0 ] || [ "$real" = "$login" ]
}

# members SSHD SINCE: sets $members; false if there are none.
members() {
	alive= members=' '
	# grep prints the file's name, and so the process ID, before each line. If a process
	# ends meanwhile, grep fails.
	lines=$(LC_ALL=C grep -H '' /proc/[0-9]*/stat 2>/dev/null 9>&-) || :
	tagged=$(grep -ls${nul}F "BOWLINE_CONNECTION=$1.$2." /proc/[0-9]*/environ 2>/dev/null 9>&-) || :
	for file in $tagged; do
		pid=${file#/proc/}
		pid=${pid%/environ}
		! believed "$pid" || members="$members$pid "
	done
	sshd_pid=$1 sshd_since=$2 ifs=$IFS
	IFS='
'
	set -f
	for stat in $lines; do
		IFS=$ifs
		pid=${stat%%/stat:*}
		pid=${pid#/proc/}
		set -- ${stat##*) }
		# If a name has newlines, only the last line has that many words: a name has at most
		# 15 bytes.
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
			case $spared$members in
			*" $pid "*) continue ;;
			esac
			case $members in
			*" ${one#*:} "*)
				[ "$pid" != "$self" ] || continue
				members="$members$pid " grown=yes
				;;
			esac
		done
	done
	# A dead process has no environment, but grep may have read it before the process died.
	all=$members members=
	for one in $alive; do
		pid=${one%:*}
		case $spared in
		*" $pid "*) continue ;;
		esac
		case $all in
		*" $pid "*) [ "$pid" = "$self" ] || members="$members $pid" ;;
		esac
	done
	[ -n "$members" ]
}

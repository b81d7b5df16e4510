# fence SSHD SINCE: ends the connection that the process SSHD, begun at SINCE, carries
# or carried, with all that was begun over it, and returns when nothing of it runs any
# more. What it leaves alone is $self, where that is one of them. 0 is no one's number.
#
# The requests of a shell bear BOWLINE_CONNECTION in their environment, and so are
# found when their sshd has gone as well; all others descend from it. Any user of the
# machine can set that variable, and can give a process any name: so it counts only
# in a process of root or of the login user, and a process is what the name of its
# directory in /proc says.
fence() {
	[ "$1" -gt 1 ] || return 0
	login=${SUDO_UID:-$(id -u 9>&-)}
	spare "$1" "$2"
	# Busybox's grep sees of an environment only its first variable, but for -z.
	nul=z
	printf 'a\0b\0' | grep -qzF b 2>/dev/null || nul=
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

# spare SSHD SINCE: sets $spared to what is never a member: process 1 and our ancestors,
# except, where the connection is ours, those that came by it.
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

# behind_name PID: sets $parent and $start, both 0 where there is no such process. The
# name may hold brackets and newlines; what follows the last bracket is the kernel's.
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

# believed PID: whether its environment is one that root or the login user gave it.
# The owner of the directory does not tell: it is root for what cannot be dumped.
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
	# grep writes the file's name before each line, and so the process's number. One that
	# ends meanwhile costs grep its exit code.
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
		# Of a name with newlines only the last line has that many words: a name is of at
		# most 15 bytes.
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
	# The dead have no environment, but may have been read before they died.
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

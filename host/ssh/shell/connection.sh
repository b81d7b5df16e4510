# Finds the sshd that carries this connection: the one above us, with nothing but
# shells and sudo between. Sets $self, and $sshd and $since, the number and the start
# of that process; both are 0 where another program than sshd started us.

# began PID: sets $began, by which a process differs from a later one with its number,
# and $parent; 0 for one that has ended. The name of a process may hold newlines: what
# follows it is in the last line.
began() {
	began=0 parent=0 stat=
	while read -r line; do
		stat=$line
	done 2>/dev/null <"/proc/$1/stat" || return 0
	set -- ${stat##*) }
	[ "$#" -ge 20 ] && [ "$1" != Z ] || return 0
	parent=$2
	shift 19
	began=$1
}

# Our own number, also where /proc is of another PID namespace than ours.
read -r stat </proc/self/stat
self=${stat%% *}
sshd=0 since=0 pid=$self
while [ "$pid" -gt 1 ]; do
	began "$pid"
	read -r comm 2>/dev/null <"/proc/$pid/comm" || comm=
	case $comm in
	sshd | sshd-session | dropbear)
		sshd=$pid since=$began
		break
		;;
	sh | *ash | *csh | ksh* | zsh | fish | busybox | sudo | su) ;;
	*) break ;;
	esac
	pid=$parent
done
# An orphaned process is left over from a connection that has ended.
[ "$pid" -gt 1 ] || {
	echo "the connection is over" >&2
	exit 1
}

# takeover PATH: kills the session that holds the lock, if it is the one that is
# recorded beside it, and waits until the lock is free.
[ -e "$1" ] || exit 0
exec 8<"$1"
if flock -n 8; then
	exit 0
fi
[ -f "$1.session" ] || fail "the lock's holder is no session of ours: it recorded none"
read -r pid start sshd since <"$1.session"
case $pid$start$sshd$since in
*[!0-9]* | '') fail "$1.session does not name a process" ;;
esac
if read -r stat 2>/dev/null <"/proc/$pid/stat"; then
	set -- "$1" ${stat##*) }
	path=$1
	shift 20
	if [ "$1" = "$start" ] && [ "/proc/$pid/fd/9" -ef "$path" ]; then
		# The connection that it came by first: requests may be on their way over it.
		if [ "$sshd" -gt 1 ] && read -r stat 2>/dev/null <"/proc/$sshd/stat"; then
			set -- "$path" ${stat##*) }
			shift 20
			[ "$1" != "$since" ] || kill -KILL "$sshd"
		fi
		kill -KILL "$pid" 2>/dev/null || :
	fi
fi
flock -w 5 8 || fail "the lock is still held, and not by the session that is recorded"

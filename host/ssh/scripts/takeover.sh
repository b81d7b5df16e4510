# takeover PATH: ends the session that holds the lock if it is the one recorded beside the
# lock, with its connection and every process started over it, and waits until the lock is
# free.
[ -e "$1" ] || exit 0
exec 8<"$1"
if flock -n 8; then
	exit 0
fi
[ -f "$1.session" ] || fail "the lock's holder is no session of ours: it recorded none"
recorded "$1.session"
[ -n "$sshd_recorded" ] || fail "$1.session does not name a process"
path=$1
behind_name "$holder_recorded"
if [ "$start" = "$began_recorded" ] && [ "/proc/$holder_recorded/fd/9" -ef "$path" ]; then
	holder=$holder_recorded self=0
	purge "$sshd_recorded" "$since_recorded"
	kill -KILL "$holder" 2>/dev/null || :
fi
flock -w 5 8 || fail "the lock is still held, and not by the session that is recorded"

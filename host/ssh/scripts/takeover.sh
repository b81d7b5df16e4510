# takeover PATH: ends the session that holds the lock if it is the one recorded beside the
# lock, with its connection and every process started over it, and waits until the lock is
# free.
[ -e "$1" ] || exit 0
exec 8<"$1"
if flock -n 8; then
	exit 0
fi
[ -f "$1.session" ] || fail "the lock's holder is no session of ours: it recorded none"
read -r pid began sshd since <"$1.session"
case $pid$began$sshd$since in
*[!0-9]* | '') fail "$1.session does not name a process" ;;
esac
path=$1
behind_name "$pid"
if [ "$start" = "$began" ] && [ "/proc/$pid/fd/9" -ef "$path" ]; then
	holder=$pid self=0
	purge "${sshd:-0}" "${since:-0}"
	kill -KILL "$holder" 2>/dev/null || :
fi
flock -w 5 8 || fail "the lock is still held, and not by the session that is recorded"

# guard: the caller sets $tag and $nonce before this text, shell/connection.sh sets $sshd.
# $tag names the connection that holds the host's lock, "SSHD.SINCE.", as in the environment
# of its requests. A process that takes the lock kills every process with that tag, so also
# the cat below. The guard then kills the sshd of its own connection, which listens for the
# node. When the listener in Bowline ends, it closes standard input, and only the guard ends.
set -eu
lock=${tag%%.*} rest=${tag#*.}
if [ "$lock" -gt 1 ]; then
	began "$lock"
	[ "$began" = "${rest%%.*}" ] || {
		echo "the connection is over" >&2
		exit 1
	}
fi
exec 3<&0
BOWLINE_CONNECTION=$tag cat <&3 >/dev/null &
child=$!
printf '%s guards\n' "$nonce"
code=0
wait "$child" || code=$?
[ "$code" -gt 128 ] && [ "$sshd" -gt 1 ] || exit 0
kill -KILL "$sshd"

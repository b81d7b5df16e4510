# guard: $tag and $nonce are set before this text, and $sshd by shell/connection.sh.
# $tag names the connection that the machine's lock is held by: "SSHD.SINCE.", as its
# requests have it in their environment. Anyone who takes the lock ends what bears that
# name; so ends the cat below, and with it the connection that this came by, which
# listens for others. Standard input is held open by who listens, whose end ends this
# alone.
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

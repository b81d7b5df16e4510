# unlisten PATH: removes a socket without a listener (flag 00010000).
[ -S "$1" ] && [ ! -L "$1" ] || fail "not a socket"
while read -r number count protocol flags type state inode path; do
	[ "$path" != "$1" ] || [ "$flags" != 00010000 ] || fail "someone listens on it"
done </proc/net/unix
rm -- "$1"

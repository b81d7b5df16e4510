# open PATH DEVICE INODE: opens as descriptor 3 the file that was opened as PATH before. It may
# have been renamed within its directory since.
open() {
	file=$1
	if [ "$(stat -c '%d %i' -- "$file" 2>/dev/null)" != "$2 $3" ]; then
		file=$(find "${1%/*}/" -maxdepth 1 -type f -inum "$3" -print 2>/dev/null) || :
		[ -n "$file" ] || fail "the file that was opened is gone: No such file or directory"
	fi
	exec 3<"$file"
	[ "$(stat -L -c '%d %i' /proc/self/fd/3)" = "$2 $3" ] || fail "the file that was opened is gone: No such file or directory"
}

# filesystems PATH...: prints, each with a key and a NUL, a line for each PATH with the device of
# its file system, and a line with the block size, blocks, blocks available to users, inodes and
# free inodes. For a PATH that does not exist it takes the nearest parent that exists.
filesystems() {
	for dir; do
		shift
		until [ -e "$dir" ]; do
			dir=${dir%/*}
			dir=${dir:-/}
		done
		set -- "$@" "$dir"
	done
	printf 'devices\0'
	[ $# -eq 0 ] || stat -L -c %d -- "$@"
	printf '\0disks\0'
	[ $# -eq 0 ] || stat -f -c '%S %b %a %c %d' -- "$@"
	printf '\0'
}

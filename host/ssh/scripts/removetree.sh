# removetree PATH DIR BASE FLAG. GNU rm walks the tree by descriptors, so a directory that a
# pod replaces with a link does not lead it out of the tree. FLAG keeps it on one file
# system. Without FLAG, rm is another one, which walks by names and could be led out. Then
# the shell walks the tree: it removes files by their names in the working directory, and
# enters a directory only if the kernel reports the requested path and the same device.
#
# Neither walk notices a mount of the same file system that appears in the tree, so this
# script runs in a namespace in which none appears: see privateScript in scripts.go.
if [ ! -d "$1" ] || [ -L "$1" ]; then
	[ -e "$1" ] || [ -L "$1" ] || exit 0
	exec rm -f -- "$1"
fi
real "$2"
real=${real%/}/$3
escaped
if grep -qF -e " $escaped" /proc/self/mountinfo; then
	cut -d ' ' -f 5 /proc/self/mountinfo | while IFS= read -r point; do
		case $point in
		"$escaped" | "$escaped"/*)
			printf '%s\n' "$point" >&2
			exit 32
			;;
		esac
	done
fi
if [ -n "${4-}" ]; then
	rm -rf "$4" -- "$1" 2>/dev/null || briefly rm -rf "$4" -- "$1"
	exit
fi

# sweep removes the content of the working directory. If an entry cannot be removed, the
# removal of the directory fails and reports it.
sweep() {
	find . -maxdepth 1 ! -type d -print0 | xargs -0 rm -f -- || :
	for entry in * .[!.]* ..?*; do
		if [ -d "./$entry" ] && [ ! -L "./$entry" ]; then
			(enter "./$entry" "${PWD%/}/$entry" && sweep) || :
			rmdir -- "./$entry" 2>/dev/null || :
		fi
	done
}

inside() {
	enter "$1" "$real" && sweep
}

device=$(stat -c %d -- "$1")
briefly inside "$1" || :
exec rmdir -- "$1"

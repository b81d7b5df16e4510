# removetree PATH DIR BASE FLAG. GNU rm walks by descriptors, so a directory that a pod
# swaps for a link meanwhile does not lead it out, and enters no other file system: FLAG
# tells it so. Where there is none rm is another, which walks by names and is led out. The
# shell walks then: what is no directory goes by its name in the working directory, and a
# directory is entered, and is left alone unless the kernel calls it by the name that was
# asked for and it is of the same device.
#
# Neither notices that a directory of the same file system is mounted below meanwhile:
# so this runs where no mount appears (private.sh).
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
	briefly rm -rf "$4" -- "$1"
	exit
fi

# sweep removes what is in the working directory. What cannot be removed makes the
# directory's own removal fail, which says so.
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

# removetree PATH DIR BASE FLAG. GNU rm walks by descriptors, so a directory that a pod
# swaps for a link meanwhile does not lead it out, and enters no other file system.
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
exec rm -rf ${4:+"$4"} -- "$1"

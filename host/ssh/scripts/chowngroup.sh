# chowngroup PATH GID BITS: BITS are r or rw. The script follows no links, and does not
# enter directories of another file system.
#
# A pod with the volume may replace any name in it with a link at any time, and chmod
# follows links. So the script mounts the volume once more in a private namespace, with
# nosymfollow. If that is not possible (before Linux 5.10, or without the right to mount),
# it enters each directory, and sets the mode of a regular file by a descriptor whose path
# the kernel reports as the requested one. FIFOs, sockets and devices keep their modes.
[ -e "$1" ] || [ -L "$1" ] || stat -- "$1" >/dev/null
group=$2 add="ug+$3" files=0440 folders=02550
[ "$3" != rw ] || files=0660 folders=02770

# each GID BITS FILE...: changes regular files in the working directory. chgrp clears setuid
# and setgid bits, so each sets them again.
each='
group=$1 bits=$2 here=$(readlink /proc/self/cwd; echo x)
shift 2
here=${here%?x}
for file; do
	{
		if [ "$(readlink /proc/self/fd/3; echo x)" = "${here%/}/${file#./}
x" ]; then
			mode=$(stat -L -c %a /proc/self/fd/3)
			chgrp "$group" /proc/self/fd/3
			chmod "$(printf 0%o $((0$mode | bits)))" /proc/self/fd/3
		fi
	} 3<"$file" || :
done'

# whole GID BITS DIRBITS ADD EACH POINT PATH: runs in a private mount namespace. If the kernel
# would follow links there, it fails before it changes anything.
whole='
mount --make-rprivate / && mount --bind -- "$7" "$7" && mount -o remount,bind,nosymfollow,nodev -- "$7" || exit 1
options=
while read -r point now; do
	[ "$point" != "$6" ] || options=$now
done <<EOF
$(cut -d " " -f 5,6 /proc/self/mountinfo)
EOF
case ,$options, in
*,nosymfollow,*) ;;
*) exit 1 ;;
esac
cd -P -- "$7" || exit 1
exec 2>&4
find . -xdev -type f \( -perm -4000 -o -perm -2000 \) ! -group "$1" -print0 |
	xargs -0 -n 200 timeout -s KILL 120 sh -c "$5" sh "$1" "$2"
find . -xdev ! -group "$1" -exec chgrp -h "$1" -- {} +
find . -xdev -type d ! -perm "-$3" -exec chmod "${4}x,g+s" -- {} +
find . -xdev ! -type d ! -type l ! -perm "-$2" -exec chmod "$4" -- {} +
exit 0'

# sweep: changes the content of the working directory, and the directory itself.
sweep() {
	find . -maxdepth 1 -type f \( ! -perm "-$files" -o ! -group "$group" \( -perm -4000 -o -perm -2000 \) \) \
		-print0 | xargs -0 -n 200 timeout -s KILL 120 sh -c "$each" sh "$group" "$files"
	find . -maxdepth 1 ! -type d ! -group "$group" -exec chgrp -h "$group" -- {} +
	for entry in * .[!.]* ..?*; do
		if [ -d "./$entry" ] && [ ! -L "./$entry" ]; then
			(enter "./$entry" "${PWD%/}/$entry" && sweep) || :
		fi
	done
	chgrp -h "$group" .
	chmod "${add}x,g+s" .
}

change() {
	set +e
	if [ -d "$1" ] && [ ! -L "$1" ]; then
		unshare -m sh -c "$whole" sh "$group" "$files" "$folders" "$add" "$each" "$escaped" "$real" 4>&2 2>/dev/null && return
		device=$(stat -c %d -- "$1")
		enter "$1" "$real" || fail "$1 was changed while it was looked at"
		sweep
		return
	fi
	cd -P -- "${1%/*}/" || return
	file=./${1##*/}
	[ ! -f "$file" ] || [ -L "$file" ] || sh -c "$each" sh "$group" "$files" "$file"
	find "$file" ! -group "$group" -exec chgrp -h "$group" -- {} +
}

# A failure of one file does not hide the others. Files that disappeared meanwhile are fine.
real "$1"
escaped
said=$(change "$1" 2>&1 >/dev/null | grep -v ': No such file or directory$' | brief)
[ -z "$said" ] || fail "$said"

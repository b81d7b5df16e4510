# bindsubpath ROOT TARGET PARENT PATH: bind-mounts PATH in ROOT on TARGET, and creates
# TARGET's PARENT.
#
# A pod may change anything in ROOT between any two lines of this script. A shell cannot
# hold a file without opening it, and open follows links and blocks on FIFOs. It can hold
# a directory: the working directory stays the same when it is renamed, and the kernel
# knows its current path. So the script enters each directory, and accepts it only if the
# kernel reports the requested path. Then it mounts ".".
#
# The script mounts a file by its name in the working directory, and a pod may have
# replaced that name with a link. No container sees TARGET, so no one can change the mount
# there. The script checks it: its root in mountinfo must be the name in the working
# directory. Otherwise the script unmounts it.
#
# Exit status 33: PATH leaves ROOT. 34: a missing part of PATH cannot be created.
target=$2 up=$3 rest=$4

unsafe() {
	printf '%s\n' "$*" >&2
	exit 33
}

# asks: after `cd -P`, dash and busybox set $PWD to the kernel's path. bash and others
# compute it from the names, which a pod may change meanwhile: for these, at reads the
# kernel's path as well.
asks=${BASH_VERSION-}${KSH_VERSION-}${ZSH_VERSION-}${YASH_VERSION-}

# at DIR: fails unless the working directory is DIR. A removed directory has no path.
at() {
	[ "${PWD#/}" != "$PWD" ] && [ "${PWD%/}" = "${1%/}" ] || unsafe "it was moved while it was looked at"
	[ -z "$asks" ] || [ "$(readlink /proc/self/cwd)" = "$PWD" ] || unsafe "it was moved while it was looked at"
}

# enter NAME: enters a directory in the working directory.
enter() {
	was=${PWD%/}
	cd -P -- "./$1" 2>/dev/null || unsafe "it was changed while it was looked at"
	at "$was/$1"
}

# make NAME: creates a directory with the mode of ROOT, including special bits. It accepts
# a directory that another process has just created.
make() {
	if mkdir -- "./$1"; then
		mode=$(stat -L -c %a -- "$base/.")
		enter "$1"
		chmod "$(printf '0%o' $((0$mode & 07777)))" . || exit 34
	else
		[ -d "./$1" ] || exit 34
		enter "$1"
	fi
}

# follow NAME: puts the target of the link in front of the rest of the path. The target must
# exist. Newlines at the end of the target are lost.
follow() {
	links=$((links + 1))
	[ "$links" -le 40 ] || unsafe "too many levels of links"
	to=$(readlink -- "./$1") || unsafe "it was changed while it was looked at"
	case $to in
	"${base:-/}" | "$base"/*)
		cd -P -- "$base/"
		at "$base"
		to=${to#"$base"}
		;;
	/*) unsafe "a link leads out of it" ;;
	esac
	must=$to/$must
}

walk() {
	links=0 must= file=
	while :; do
		if [ -n "$must" ]; then
			name=${must%%/*} may=
			must=${must#"$name"}
			must=${must#/}
		elif [ -n "$rest" ]; then
			name=${rest%%/*} may=yes
			rest=${rest#"$name"}
			rest=${rest#/}
		else
			return 0
		fi
		case $name in
		'' | .) continue ;;
		..)
			[ "${PWD%/}" != "$base" ] || unsafe "a link leads out of it"
			was=${PWD%/*}
			cd -P ..
			at "$was"
			continue
			;;
		esac
		if [ -L "./$name" ]; then
			follow "$name"
		elif [ -d "./$name" ]; then
			enter "$name"
		elif [ -e "./$name" ]; then
			case $must$rest in
			*[!/]*) fail "$name: Not a directory" ;;
			esac
			file=$name
			return 0
		elif [ -n "$may" ]; then
			make "$name"
		else
			printf 'a link leads to what is not there\n' >&2
			exit 34
		fi
	done
}

# shown: whether the working directory, at $here, is mounted on $target, or its $file if
# that is set.
shown() {
	if [ -z "$file" ]; then
		[ . -ef "$target" ]
		return
	fi
	real "$target"
	escaped
	place=$escaped
	real=$here/$file
	escaped
	name=$escaped
	real=$here
	escaped
	exec 3<.
	id=
	while read -r key value; do
		[ "$key" != mnt_id: ] || id=$value
	done </proc/self/fdinfo/3
	exec 3<&-
	holder= own= got=
	while read -r number _ device root point _; do
		if [ "$number" = "$id" ]; then
			[ "$point" != / ] || point=
			inside=${escaped#"$point"}
			holder="$device ${root%/}$inside${name#"$escaped"}"
		fi
		# A mount of the host on exactly this file.
		[ "$point" != "$name" ] || own="$device $root"
		[ "$point" != "$place" ] || got="$device $root"
	done <<END
$(grep -e "^$id " /proc/self/mountinfo)
$(grep -F -e " $place " -e " $name " /proc/self/mountinfo)
END
	[ -n "$got" ] || return 1
	[ "$got" = "$holder" ] || [ "$got" = "$own" ]
}

# vacate: detaches all mounts on $target, lazily because a file server may not answer, and
# removes $target if it is not of the kind that the mount needs.
vacate() {
	real "$target"
	escaped
	case $real in
	*/"${target##*/}") ;;
	*) fail "$real is not $target" ;;
	esac
	rounds=0
	while cut -d ' ' -f 5 /proc/self/mountinfo | grep -qxF -e "$escaped"; do
		[ "$rounds" -lt 64 ] || fail "still mounted after 64 rounds"
		rounds=$((rounds + 1))
		umount -l -- "$real"
	done
	if [ -d "$target" ] && [ ! -L "$target" ]; then
		[ -z "$file" ] || rmdir -- "$target"
	elif [ -z "$file" ] || [ -L "$target" ] || [ ! -f "$target" ]; then
		rm -f -- "$target"
	fi
}

[ -d "$1" ] || {
	stat -L -c '' -- "$1" >/dev/null
	fail "$1: Not a directory"
}
cd -P -- "$1"
base=${PWD%/}
walk
# The current path, which may differ from the one at entry.
here=$PWD
cd -P . 2>/dev/null || unsafe "it has been removed"
at "$here"
here=${here%/}

if [ -e "$target" ] || [ -L "$target" ]; then
	! shown || exit 0
	vacate
fi
parents "$up" 027
if [ -n "$file" ]; then
	[ -e "$target" ] || (umask 027 && : >"$target")
else
	[ -d "$target" ] || mkdir -m 0750 -- "$target"
fi
trap 'umount -l -- "$target" 2>/dev/null' EXIT
# Without -c, util-linux resolves the name again and may mount another file, which the
# check detects. Busybox has no -c and needs none.
mount -c --bind -- "./$file" "$target" 2>/dev/null || mount --bind -- "./$file" "$target"
shown || unsafe "it was changed while it was mounted"
trap - EXIT

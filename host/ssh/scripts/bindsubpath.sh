# bindsubpath ROOT TARGET PARENT PATH: shows what is at PATH in ROOT on TARGET, whose
# PARENT is made.
#
# A pod may change all that is in ROOT between any two of these lines, and a shell
# cannot hold a file without opening it, which follows links and waits for FIFOs. It
# can hold a directory: the working directory stays what it is, whatever its name
# becomes, and where it is the kernel says. So each
# directory is entered, and is the right one only if the kernel calls it by the name
# that was asked for. "." is then mounted.
#
# A file is mounted by its name in the working directory, and that name may be a link
# by then. TARGET is where no container looks, so what was mounted is checked there,
# where no one can change it any more: the root of the mount, as mountinfo has it, has
# to be the name in the working directory. What is not is unmounted.
#
# 33: it does not stay within ROOT. 34: what is missing cannot be made.
target=$2 up=$3 rest=$4

unsafe() {
	printf '%s\n' "$*" >&2
	exit 33
}

# asks: dash and busybox have the kernel say what $PWD is after `cd -P`. bash and others
# work it out of the names, which a pod may change under them: the kernel is asked beside.
asks=${BASH_VERSION-}${KSH_VERSION-}${ZSH_VERSION-}${YASH_VERSION-}

# at DIR: the working directory is DIR. One that has been removed has no name.
at() {
	[ "${PWD#/}" != "$PWD" ] && [ "${PWD%/}" = "${1%/}" ] || unsafe "it was moved while it was looked at"
	[ -z "$asks" ] || [ "$(readlink /proc/self/cwd)" = "$PWD" ] || unsafe "it was moved while it was looked at"
}

# enter NAME: a directory in the working directory.
enter() {
	was=${PWD%/}
	cd -P -- "./$1" 2>/dev/null || unsafe "it was changed while it was looked at"
	at "$was/$1"
}

# make NAME: a directory with the mode of ROOT, special bits included. One that another has
# just made is taken as it is.
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

# follow NAME: what is left to walk is where the link leads, and then the rest; what
# a link names must be there. A link that ends in newlines is read without them.
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

# shown: $target shows the working directory, or $file in it, whose names are $here
# and $here/$file.
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
		# Something of the machine's that is mounted on the very file.
		[ "$point" != "$name" ] || own="$device $root"
		[ "$point" != "$place" ] || got="$device $root"
	done <<END
$(grep -e "^$id " /proc/self/mountinfo)
$(grep -F -e " $place " -e " $name " /proc/self/mountinfo)
END
	[ -n "$got" ] || return 1
	[ "$got" = "$holder" ] || [ "$got" = "$own" ]
}

# vacate: what is mounted on $target goes out of sight at once, as it may be a dead
# server's; what is there is made the kind that is needed.
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
# Where it is now, and not when it was entered.
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
# Without -c util-linux looks the name up and mounts what has it then, which the
# check finds out; busybox has no -c, and needs none.
mount -c --bind -- "./$file" "$target" 2>/dev/null || mount --bind -- "./$file" "$target"
shown || unsafe "it was changed while it was mounted"
trap - EXIT

set -eu

# fail TEXT...: ends with a message. Texts that end as strerror(3) does are
# understood as that error.
fail() {
	printf '%s\n' "$*" >&2
	exit 1
}

# brief passes on the beginning of its input, and reads all of it: of a million files
# with one and the same trouble a few tell it.
brief() {
	head -c 4096
	cat >/dev/null
}

# briefly COMMAND...: only the beginning of what it writes to stderr is passed on.
briefly() {
	code=$({ {
		code=0
		"$@" 3>&- || code=$?
		printf '%s\n' "$code" >&3
	} 2>&1 >/dev/null | brief >&2; } 3>&1)
	return "$code"
}

# room FILE: a write of the shell's own has failed, which does not say why; what
# writes to FILE here says that a disk is full.
room() {
	head -c 65536 /dev/zero | cat >|"$1" || :
}

# parents DIR UMASK: makes what is missing of DIR; the umask is the loop's afterwards.
parents() {
	[ -d "$1" ] || {
		umask "$2"
		mkdir -p -- "$1" && umask 022
	} || {
		up=$1
		until [ -e "$up" ] || [ -z "$up" ]; do
			up=${up%/*}
		done
		[ -z "$up" ] || [ -d "$up" ] || fail "$up: Not a directory"
		exit 1
	}
}

# refuse PATH: says why PATH is no regular file.
refuse() {
	stat -L -c '' -- "$1" >/dev/null
	fail "not a regular file: $(stat -L -c %F -- "$1")"
}

# real PATH: sets $real to PATH with the links of all that exists resolved, as
# mountinfo has it. A directory that has been removed, and is mounted all the same,
# has no path that pwd knows.
real() {
	real=$1 rest=
	until dir=$(cd -P -- "$real" 2>/dev/null && pwd -P 2>/dev/null && echo x) && [ "${dir#/}" != "$dir" ]; do
		rest=/${real##*/}$rest real=${real%/*}
		real=${real:-/}
	done
	dir=${dir%?x}
	real=${dir%/}$rest
	real=${real:-/}
}

# escaped: sets $escaped to $real as mountinfo writes it.
escaped() {
	case $real in
	*[\\[:space:]]*)
		escaped=$(printf %sx "$real" | sed -e ':a' -e '$!{N;ba' -e '}' \
			-e 's/\\/\\134/g' -e 's/ /\\040/g' -e 's/	/\\011/g' -e 's/\n/\\012/g')
		escaped=${escaped%x}
		;;
	*) escaped=$real ;;
	esac
}

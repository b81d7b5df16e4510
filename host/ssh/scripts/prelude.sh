set -eu

# fail TEXT...: exits with a message. If it ends with a text of strerror(3), Bowline maps it
# to that error.
fail() {
	printf '%s\n' "$*" >&2
	exit 1
}

# brief prints the beginning of its input, and reads all of it: if a million files fail for
# the same reason, a few messages are enough.
brief() {
	head -c 4096
	cat >/dev/null
}

# briefly COMMAND...: passes on only the beginning of its stderr.
briefly() {
	code=$({ {
		code=0
		"$@" 3>&- || code=$?
		printf '%s\n' "$code" >&3
	} 2>&1 >/dev/null | brief >&2; } 3>&1)
	return "$code"
}

# room FILE: a write of the shell itself has failed without a reason; a program that writes to
# FILE reports a full disk.
room() {
	head -c 65536 /dev/zero | cat >|"$1" || :
}

# parents DIR UMASK: creates DIR and its missing parents, then restores the loop's umask.
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

# refuse PATH: reports why PATH is not a regular file.
refuse() {
	stat -L -c '' -- "$1" >/dev/null
	fail "not a regular file: $(stat -L -c %F -- "$1")"
}

# real PATH: sets $real to PATH with all links in its existing part resolved, as in mountinfo.
# If a directory was removed and is still mounted, pwd knows no path for it.
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

# escaped: sets $escaped to $real with the escapes of mountinfo.
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

# pattern: sets $pattern to the regular expression for $real in mountinfo, without a slash at
# its end. In sed, commas must delimit it.
pattern() {
	escaped
	pattern= left=${escaped%/}
	while :; do
		plain=${left%%[]\[\\.*^$,]*}
		pattern=$pattern$plain left=${left#"$plain"}
		[ -n "$left" ] || break
		next=${left#?}
		pattern=$pattern\\${left%"$next"} left=$next
	done
}

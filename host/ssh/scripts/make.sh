# make: $input is shell text that calls the functions below (see makeText). The script prints
# the numbers of the entries that it created.

# dirs MASK MODE NUMBER:PATH...: MASK is for missing parents. Existing directories stay as
# they are.
dirs() {
	mask=$1 mode=$2
	shift 2
	for word; do
		shift
		path=${word#*:}
		if [ -d "$path" ]; then
			continue
		elif [ -e "$path" ] || [ -L "$path" ]; then
			fail "$path: Not a directory"
		else
			printf '%s\n' "${word%%:*}"
			set -- "$@" "$path"
		fi
	done
	[ $# -gt 0 ] || return 0
	umask "$mask"
	mkdir -p -m "$mode" -- "$@"
}

# full NUMBER MASK MODE PATH DIR TEMPORARY: writes the output of content to the file.
# MODE is empty if MASK results in it.
full() {
	seen "$1" "$4"
	parents "$5" 027
	umask "$2"
	tmp=$6
	content >"$tmp"
	place "$3" "$4"
}

# inplace NUMBER MASK MODE PATH DIR TEMPORARY WHOLE: like full, but an existing regular file
# keeps its inode, and gets the mode WHOLE. A new one is written under its own name, because a
# reader of such a file may see a part of it anyway.
inplace() {
	if [ -z "$3" ] && [ ! -e "$4" ] && [ ! -L "$4" ]; then
		parents "$5" 027
		umask "$2"
		if { true >"$4"; } 2>/dev/null; then
			printf '%s\n' "$1"
			tmp=$4
			content >|"$4"
			tmp=
			return
		fi
	fi
	if [ -L "$4" ] || [ ! -f "$4" ]; then
		full "$@"
		return
	fi
	content >|"$4"
	chmod "$7" -- "$4"
}

# synced: like full. The file survives a power failure.
synced() {
	above "$5"
	seen "$1" "$4"
	parents "$5" 027
	umask "$2"
	tmp=$6
	content >"$tmp"
	[ -z "$3" ] || chmod "$3" "$tmp"
	sync -- "$tmp"
	place '' "$4"
	named "$5"
}

# empty: like full, for an empty file.
empty() {
	seen "$1" "$4"
	parents "$5" 027
	umask "$2"
	if [ -n "$3" ] || [ -e "$4" ] || ! { true >"$4"; } 2>/dev/null; then
		tmp=$6
		: >"$tmp"
		place "$3" "$4"
	fi
}

seen() {
	[ -e "$2" ] || [ -L "$2" ] || printf '%s\n' "$1"
}

place() {
	[ -z "$1" ] || chmod "$1" "$tmp"
	mv -fT -- "$tmp" "$2"
	tmp=
}

set -C
tmp=
trap '[ -z "$tmp" ] || { room "$tmp"; rm -f -- "$tmp"; }' EXIT
# If the link fails during the transfer, it looks like the end of the text.
case $input in
*'#end') ;;
*) fail "the list was cut off" ;;
esac
eval "$input"

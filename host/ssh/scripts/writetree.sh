# writetree DIR VERSION WAIT: $input is shell text that describes the wanted tree, with a
# function that writes it into the current directory (see treeAbout, treeContent).
dir=$1 next=$2

# holds VERSION: whether it has exactly the wanted paths, modes, owners and bytes.
holds() {
	cd "$1" || return 1
	total=0
	dirs entries_of
	[ "$total" -eq "$entries" ] &&
		[ "$(states 2>/dev/null)" = "$states" ] &&
		[ "$(contents | sha256sum)" = "$digest" ]
}

# target LINK: sets $target.
target() {
	target=$(readlink -- "$1" && echo x)
	target=${target%?x}
}

# linked: whether every wanted link exists.
linked() {
	[ "$count" -eq 0 ] || [ "$(targets 2>/dev/null)" = "$links" ]
}

# missing NAME...: prints the links to create, each with a NUL.
missing() {
	for name; do
		[ -L "$name" ] || [ -e "$name" ] || printf '..data/%s\0' "$name"
	done
}

make_links() {
	names missing | xargs -0 -r sh -c 'ln -s -- "$@" .' sh
}

# clear NAME...: removes links to other targets. Anything else there stays and is an error:
# most likely, a runtime has mounted another volume there.
clear() {
	for name; do
		if [ -L "$name" ]; then
			target "$name"
			[ "$target" = "..data/$name" ] || rm -- "$name"
		elif [ -e "$name" ]; then
			fail "$name is there and is no link: File exists"
		fi
	done
}

# count ENTRY...: sets $counted to the number of entries that exist.
count() {
	counted=0
	for entry; do
		[ -L "$entry" ] || [ -e "$entry" ] || continue
		counted=$((counted + 1))
	done
}

# entries_of DIR...: adds the number of their entries to $total.
entries_of() {
	for sub; do
		count "$sub"/* "$sub"/.[!.]* "$sub"/..?*
		total=$((total + counted))
	done
}

# sweep ENTRY...: removes links to removed files, and old versions; nothing that we did not
# create.
sweep() {
	keep=/$(names printf '%s/')
	for entry; do
		case $entry in
		"$current" | ..data) continue ;;
		esac
		case $keep in
		*"/$entry/"*) continue ;;
		esac
		case $entry in
		..[0-9]*) rm -rf -- "$entry" ;;
		*)
			[ -L "$entry" ] || continue
			target "$entry"
			if [ "$entry" = ..data_tmp ] || [ "$target" = "..data/$entry" ]; then
				rm -- "$entry"
			fi
			;;
		esac
	done
}

# If the link fails during the transfer, it looks like the end of the text.
case $input in
*'#end') ;;
*) fail "the tree was cut off" ;;
esac
eval "$input"
parents "$dir" 022
cd -P -- "$dir"
exec 9<.
flock -w "$3" 9 || fail "another writer is in the directory"

count * .[!.]* ..?*
fresh=
[ "$counted" -gt 0 ] || fresh=yes
current=
if [ -L ..data ]; then
	target ..data
	case $target in
	*/*) ;;
	..[0-9]*)
		if [ -d "$target" ] && [ ! -L "$target" ]; then
			current=$target
		fi
		;;
	esac
fi
if [ -z "$current" ] || ! (holds "$current"); then
	trap '[ ! -d "$next" ] || room "$next/.room"; rm -rf -- "$next"' EXIT
	mkdir -- "$next"
	(
		cd -- "$next"
		content
	)
	# A directory passes setgid to new ones in it; versions have plain modes.
	[ ! -g "$next" ] || find "$next" -type d -exec chmod g-s -- {} +
	if [ -n "$fresh" ]; then
		ln -s -- "$next" ..data
	else
		[ ! -L ..data_tmp ] || rm -- ..data_tmp
		ln -s -- "$next" ..data_tmp
		mv -fT -- ..data_tmp ..data
	fi
	trap - EXIT
	current=$next
fi
# Create visible links after the flip, so that none dangles, and remove links of deleted
# files after it for the same reason.
if [ -n "$fresh" ]; then
	link_all
elif ! linked; then
	make_links
	if ! linked; then
		names clear
		make_links
	fi
fi
[ -z "$fresh" ] || exit 0
count * .[!.]* ..?*
[ "$counted" -eq $((count + 2)) ] || sweep * .[!.]* ..?*

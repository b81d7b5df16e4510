# above DIR: sets $top to DIR, or to the nearest directory above it that is there.
above() {
	top=$1
	until [ -d "$top" ] || [ "$top" = / ]; do
		top=${top%/*}
		top=${top:-/}
	done
}

# named DIR: brings to the disk the names in DIR, and in the directories from $top that
# lead to it. An old sync(1) takes no arguments, and syncs all that the machine has; so
# do we where a file system cannot sync a directory by itself.
named() {
	set -- "$1"
	while [ "$1" != "$top" ]; do
		up=${1%/*}
		set -- "${up:-/}" "$@"
	done
	said=$(sync -- "$@" 2>&1) || case $said in
	*'Invalid argument'*) sync ;;
	*) fail "$said" ;;
	esac
}

# above DIR: sets $top to DIR, or to its nearest ancestor that exists.
above() {
	top=$1
	until [ -d "$top" ] || [ "$top" = / ]; do
		top=${top%/*}
		top=${top:-/}
	done
}

# named DIR: syncs DIR and the directories from $top down to it. An old sync(1) takes no
# arguments and syncs all file systems; the script does the same if a file system cannot
# sync a single directory.
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

# mount SOURCE TARGET DIR TYPE OPTIONS: what another machine shares. The target is not
# looked at where something is mounted: who looks waits for the other machine.
source=$1 target=$2 type=$4 options=$5
real "$3"
real=${real%/}/${target##*/}
escaped
top=$(top)
case $top in
"$type $source "* | "${type}4 $source "*) exit 0 ;;
esac
[ -n "$top" ] || parents "$target" 027
exec mount -t "$type" -o "$options" -- "$source" "$real"

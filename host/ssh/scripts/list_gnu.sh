# list DIR: prints a record for each entry. The trailing slash follows a link to a directory.
[ -d "$1/." ] || { stat -- "$1/." >/dev/null; fail "Not a directory"; }
exec find "$1/" -mindepth 1 -maxdepth 1 -ignore_readdir_race -printf '%y %m %s %i %D %G %T@\0%f\0%l\0'

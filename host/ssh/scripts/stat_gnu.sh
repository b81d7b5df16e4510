# stat PATH: one record, see parseInfos.
exec find "$1" -maxdepth 0 -printf '%y %m %s %i %D %G %T@\0%f\0%l\0'

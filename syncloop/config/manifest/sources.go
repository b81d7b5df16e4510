package manifest

import (
	"reflect"

	v1 "k8s.io/api/core/v1"
)

// sources counts what is set of a volume: each kind of volume is a pointer.
func sources(v *v1.VolumeSource) (n int) {
	fields := reflect.ValueOf(v).Elem()
	for i := range fields.NumField() {
		if !fields.Field(i).IsNil() {
			n++
		}
	}
	return n
}

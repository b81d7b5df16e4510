package manifest

import (
	"reflect"

	v1 "k8s.io/api/core/v1"
)

// sources counts the sources that a volume sets: each kind of source is a pointer field.
func sources(v *v1.VolumeSource) (n int) {
	fields := reflect.ValueOf(v).Elem()
	for i := range fields.NumField() {
		if !fields.Field(i).IsNil() {
			n++
		}
	}
	return n
}

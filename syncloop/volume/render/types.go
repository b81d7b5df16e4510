package render

import (
	"fmt"
	"reflect"

	v1 "k8s.io/api/core/v1"
)

// UnsupportedError says that this node does not mount volumes of a kind.
type UnsupportedError struct {
	Type string // the field's name in the API, such as "iscsi"
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("volumes of type %s are not supported by this node", e.Type)
}

// TypeOf is the volume's kind: the name of its API field, or "none" if no field is set.
func TypeOf(v *v1.Volume) string {
	return SourceOf(v.VolumeSource)
}

// SourceOf is TypeOf for any union of sources: the name of the field that is set.
func SourceOf(union any) string {
	source := reflect.ValueOf(union)
	for i := range source.NumField() {
		if f := source.Field(i); f.Kind() == reflect.Pointer && !f.IsNil() {
			name := source.Type().Field(i).Tag.Get("json")
			for j := range name {
				if name[j] == ',' {
					return name[:j]
				}
			}
			return name
		}
	}
	return "none"
}

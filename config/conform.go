package config

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// conform compares the tree with the types, removes what does not fit, and returns an error for
// each: json.Unmarshal would stop at the first.
func conform(tree map[string]any) field.ErrorList {
	return conformStruct(nil, tree, reflect.TypeFor[BowlineConfiguration]())
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// conformValue reports whether the value may stay in the tree.
func conformValue(p *field.Path, v any, t reflect.Type) (field.ErrorList, bool) {
	if v == nil {
		return nil, false // as if it was not written
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if !reflect.PointerTo(t).Implements(unmarshaler) {
		switch t.Kind() {
		case reflect.Struct:
			m, ok := v.(map[string]any)
			if !ok {
				return field.ErrorList{wrongKind(p, v, "a map")}, false
			}
			return conformStruct(p, m, t), true
		case reflect.Slice:
			list, ok := v.([]any)
			if !ok {
				return field.ErrorList{wrongKind(p, v, "a list")}, false
			}
			return conformList(p, list, t.Elem())
		case reflect.Map:
			m, ok := v.(map[string]any)
			if !ok {
				return field.ErrorList{wrongKind(p, v, "a map")}, false
			}
			var errs field.ErrorList
			for _, k := range sortedKeys(m) {
				e, keep := conformValue(p.Key(k), m[k], t.Elem())
				errs = append(errs, e...)
				if !keep {
					delete(m, k)
				}
			}
			return errs, true
		}
	}
	raw, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(raw, reflect.New(t).Interface())
	}
	if err != nil {
		return field.ErrorList{wrongKind(p, v, expected(t))}, false
	}
	return nil, true
}

// conformList replaces what it removes, so that later messages have the right index: with an empty
// map in a list of maps, otherwise with the zero value.
func conformList(p *field.Path, list []any, t reflect.Type) (field.ErrorList, bool) {
	var errs field.ErrorList
	for i, v := range list {
		if v == nil {
			errs = append(errs, field.Required(p.Index(i), "the item is empty"))
			list[i] = reflect.New(t).Interface()
			continue
		}
		e, keep := conformValue(p.Index(i), v, t)
		errs = append(errs, e...)
		if !keep {
			list[i] = reflect.New(t).Interface()
		}
	}
	return errs, true
}

func conformStruct(p *field.Path, m map[string]any, t reflect.Type) field.ErrorList {
	fields := jsonFields(t)
	var errs field.ErrorList
	for _, k := range sortedKeys(m) {
		at := p.Child(k)
		if p == nil {
			at = field.NewPath(k)
		}
		ft, ok := fields[k]
		if !ok {
			errs = append(errs, unknown(at, k, fields))
			delete(m, k)
			continue
		}
		e, keep := conformValue(at, m[k], ft)
		errs = append(errs, e...)
		if !keep {
			delete(m, k)
		}
	}
	return errs
}

// jsonFields are a struct's fields by their JSON names, including inlined ones.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for f := range fieldsOf(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "" && strings.Contains(options, "inline"):
			for n, ft := range jsonFields(f.Type) {
				fields[n] = ft
			}
		case name != "" && name != "-":
			fields[name] = f.Type
		}
	}
	return fields
}

func fieldsOf(t reflect.Type) func(func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range t.NumField() {
			if !yield(t.Field(i)) {
				return
			}
		}
	}
}

// unknown suggests the field that was probably meant.
func unknown(p *field.Path, name string, fields map[string]reflect.Type) *field.Error {
	detail := "no such field"
	for _, known := range sortedKeys(fields) {
		if strings.EqualFold(known, name) {
			detail = fmt.Sprintf("no such field; did you mean %s?", known)
		}
	}
	return field.Invalid(p, field.OmitValueType{}, detail)
}

func wrongKind(p *field.Path, v any, want string) *field.Error {
	switch v.(type) {
	case map[string]any, []any:
		return field.TypeInvalid(p, field.OmitValueType{}, "is "+kindOf(v)+"; want "+want)
	}
	return field.TypeInvalid(p, v, "want "+want)
}

func kindOf(v any) string {
	switch v.(type) {
	case map[string]any:
		return "a map"
	case []any:
		return "a list"
	case string:
		return "a string"
	case bool:
		return "true or false"
	case json.Number:
		return "a number"
	}
	return "empty"
}

func expected(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string (quote it)"
	case reflect.Bool:
		return "true or false"
	case reflect.Int32, reflect.Int64:
		return "a whole number"
	case reflect.Uint32:
		return "a whole number, at least 0"
	}
	switch t.Name() {
	case "Duration", "TimeOrMetaDuration":
		return `a duration such as "10s" or "5m"`
	case "Time":
		return "a time as RFC 3339 writes it"
	}
	return "a " + t.Name()
}

// inherit copies the configuration's settings into the hosts, and into the template of Host
// objects, where they do not set them.
func inherit(tree map[string]any) {
	listed, _ := tree["hosts"].([]any)
	hosts := slices.Clone(listed)
	if objects, ok := tree["hostObjects"].(map[string]any); ok {
		if objects["template"] == nil {
			objects["template"] = map[string]any{}
		}
		hosts = append(hosts, objects["template"])
	}
	for name := range jsonFields(reflect.TypeFor[NodeSettings]()) {
		v, ok := tree[name]
		if !ok {
			continue
		}
		for _, h := range hosts {
			if m, isMap := h.(map[string]any); isMap {
				if _, own := m[name]; !own {
					m[name] = v
				}
			}
		}
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

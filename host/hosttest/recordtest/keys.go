package recordtest

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/bowline-k8s/bowline/hint"
)

// Keys fails if record, of which this Bowline writes the given version to the file name below
// <root>/bowline, has other keys than that version has: an older Bowline refuses a record with a key
// that it does not know as damaged. The keys of each version are in host/schema/testdata/keys, and
// never change. Types of dependencies count too: they get new fields with an update.
func Keys(t *testing.T, version int, name string, record any) {
	t.Helper()
	KeysAt(t, version, name, filepath.Join("bowline", name), record)
}

// KeysAt is Keys for a record that this Bowline writes to the path at below <root>; name is that of
// its list of keys.
func KeysAt(t *testing.T, version int, name, at string, record any) {
	t.Helper()
	if err := checkKeys(filepath.Dir(records(t)), version, name, at, record); err != nil {
		t.Errorf("%v\n%s", err, hint.Of(err))
	}
}

// checkKeys compares the keys of record with the list of its version below testdata.
func checkKeys(testdata string, version int, name, at string, record any) error {
	have, err := keysOf(record)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	dir := fmt.Sprintf("v%d", version)
	data, err := os.ReadFile(filepath.Join(testdata, "keys", dir, name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return hint.Add(fmt.Errorf("%s has the new version %d", name, version),
			"add the example host/schema/testdata/records/%s/%s, and host/schema/testdata/keys/%s/%s with its keys:\n%s",
			dir, at, dir, name, strings.Join(have, "\n"))
	case err != nil:
		return err
	}
	if _, err := os.Stat(filepath.Join(testdata, "records", dir, at)); err != nil {
		return fmt.Errorf("version %d of %s has no example: %w", version, name, err)
	}
	want := strings.Fields(string(data))
	var differ []string
	for _, key := range have {
		if !slices.Contains(want, key) {
			differ = append(differ, "+"+key)
		}
	}
	for _, key := range want {
		if !slices.Contains(have, key) {
			differ = append(differ, "-"+key)
		}
	}
	if len(differ) == 0 {
		return nil
	}
	return hint.Add(fmt.Errorf("a Bowline of version %d refuses %s, because its keys differ: %s", version, name, strings.Join(differ, " ")),
		"make version %d of the record, or, if the key is of a dependency's type, store only what Bowline uses of it", version+1)
}

// keysOf returns the keys of a record in which every field is set, as paths, sorted. [] stands for
// the elements of a list, {} for the values of a map.
func keysOf(record any) ([]string, error) {
	v := reflect.New(reflect.TypeOf(record)).Elem()
	if err := fill(v, v.Type().Name()); err != nil {
		return nil, err
	}
	data, err := json.Marshal(v.Interface())
	if err != nil {
		return nil, err
	}
	var decoded any
	if err := json.Unmarshal(data, &decoded); err != nil {
		return nil, err
	}
	keys := map[string]bool{}
	collect(keys, "", decoded)
	return slices.Sorted(maps.Keys(keys)), nil
}

// anyKey is the key of each map that fill makes.
const anyKey = "{}"

func collect(keys map[string]bool, path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, element := range v {
			at := strings.TrimPrefix(path+"."+k, ".")
			keys[at] = true
			collect(keys, at, element)
		}
	case []any:
		for _, element := range v {
			collect(keys, path+"[]", element)
		}
	}
}

// fill sets v and every field below it to something that is not empty.
func fill(v reflect.Value, path string) error {
	switch p := v.Addr().Interface().(type) {
	case *time.Time:
		*p = time.Unix(1, 0)
		return nil
	case *resource.Quantity:
		*p = resource.MustParse("1")
		return nil
	case json.Marshaler, encoding.TextMarshaler:
		return fmt.Errorf("%s: the keys of %s are unknown, because it writes itself", path, v.Type())
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(1)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return fill(v.Elem(), path)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		return fill(v.Index(0), path+"[]")
	case reflect.Map:
		if v.Type().Key().Kind() != reflect.String {
			return fmt.Errorf("%s: a key of type %s", path, v.Type().Key())
		}
		element := reflect.New(v.Type().Elem()).Elem()
		if err := fill(element, path+"."+anyKey); err != nil {
			return err
		}
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf(anyKey).Convert(v.Type().Key()), element)
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				if err := fill(v.Field(i), path+"."+f.Name); err != nil {
					return err
				}
			}
		}
	default:
		return fmt.Errorf("%s: a field of type %s", path, v.Type())
	}
	return nil
}

package pool

import (
	"reflect"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

const document = `apiVersion: bowline.io/v1alpha1
kind: BowlineConfiguration
kubeconfig: kubeconfig
registerWithTaints: [{key: a, effect: NoSchedule}]
systemReserved: {cpu: 100m}
hosts:
- nodeName: box-1
  endpoint: ssh://root@10.0.0.7/run/containerd/containerd.sock
  labels: {example.com/rack: r1}
  taints: [{key: b, value: c, effect: NoExecute}]
  maxParallelImagePulls: 3
  ssh:
    secret: {namespace: bowline, name: box-1}
    hostKeys: ["SHA256:xVLVAAaIIFlKz0ZGPPEnIHXM6Ft8PxwCkd7pJ2ecdg8"]
`

// TestSame: a file that is read twice gives equal hosts, and every field is compared.
func TestSame(t *testing.T) {
	read := func() *config.Host {
		c, err := config.ParseFile("/etc/bowline/config.yaml", []byte(document))
		testutil.Must(t, err)
		return &c.Hosts[0]
	}
	if !same(read(), read()) {
		t.Error("what was read twice differs")
	}
	empty, none := read(), read()
	empty.KubeReserved, none.KubeReserved = map[string]string{}, nil
	if !same(empty, none) {
		t.Error("nothing in a map is something else than no map")
	}
	changed := 0
	var each func(path string, of func(*config.Host) reflect.Value)
	each = func(path string, of func(*config.Host) reflect.Value) {
		if v := of(read()); v.Kind() == reflect.Struct {
			for i := range v.NumField() {
				each(path+"."+v.Type().Field(i).Name, func(h *config.Host) reflect.Value { return of(h).Field(i) })
			}
			return
		}
		h := read()
		alter(t, path, of(h))
		if same(h, read()) {
			t.Errorf("%s changes nothing", path)
		}
		changed++
	}
	each("", func(h *config.Host) reflect.Value { return reflect.ValueOf(h).Elem() })
	if changed < 30 {
		t.Errorf("only %d fields were changed", changed)
	}
}

// alter changes a value.
func alter(t *testing.T, path string, v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int32, reflect.Int64:
		v.SetInt(v.Int() + int64(time.Second))
	case reflect.Pointer:
		fresh := reflect.New(v.Type().Elem())
		if v.IsNil() {
			v.Set(fresh)
			return
		}
		fresh.Elem().Set(v.Elem())
		v.Set(fresh)
		if inner := fresh.Elem(); inner.Kind() == reflect.Struct {
			inner = inner.Field(0)
			alter(t, path, inner)
		} else {
			alter(t, path, inner)
		}
	case reflect.Slice:
		v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
	case reflect.Map:
		m := reflect.MakeMap(v.Type())
		for _, k := range v.MapKeys() {
			m.SetMapIndex(k, v.MapIndex(k))
		}
		m.SetMapIndex(reflect.New(v.Type().Key()).Elem(), reflect.Zero(v.Type().Elem()))
		v.Set(m)
	default:
		t.Fatalf("%s is a %s: say here how it is changed", path, v.Kind())
	}
}

package spec

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestEnvFileValue(t *testing.T) {
	const text = "# a comment\n\n  FIRST='one'\nWITH='a=b # no comment' # a comment\nEMPTY=''\nBLANK= 'x'\nMANY='two\n  lines\n'\nFIRST='again'\nDOS='x'\r\nLAST='end'"
	for key, want := range map[string]string{"FIRST": "one", "WITH": "a=b # no comment", "EMPTY": "", "BLANK": "", "MANY": "two\n  lines\n",
		"DOS": "x", "LAST": "end", "NONE": "", "lines": ""} {
		if got, err := EnvFileValue(text, key); err != nil || got != want {
			t.Errorf("%s is %q (%v), not %q", key, got, err, want)
		}
	}
	for _, bad := range []string{"A", "A=b", "A=\"b\"", "A ='b'", "='b'", "A='b", "A='b' c", "A='b\nc' d"} {
		if got, err := EnvFileValue(bad+"\nKEY='value'\n", "KEY"); err == nil {
			t.Errorf("after %q: %q", bad, got)
		}
	}
	if got, err := EnvFileValue("KEY='value'\nnonsense", "KEY"); err != nil || got != "value" {
		t.Errorf("what comes after the variable counts: %q, %v", got, err)
	}
}

func TestEnvFromFile(t *testing.T) {
	yes := true
	from := func(name, key string, optional *bool) v1.EnvVar {
		return v1.EnvVar{Name: name, ValueFrom: &v1.EnvVarSource{FileKeyRef: &v1.FileKeySelector{VolumeName: "v", Path: "d/f", Key: key, Optional: optional}}}
	}
	p := &v1.Pod{}
	no := false
	p.Spec.EnableServiceLinks = &no
	files := map[EnvFile][]byte{{"v", "d/f"}: []byte("A='1'\n")}
	c := &v1.Container{Env: []v1.EnvVar{from("X", "A", nil), from("Y", "B", &yes), {Name: "Z", Value: "<$(X)>"}}}
	got, err := Env(p, c, EnvInput{Files: files})
	if err != nil || len(got) != 2 || got[0] != (EnvVar{"X", "1"}) || got[1] != (EnvVar{"Z", "<1>"}) {
		t.Errorf("%v, %v", got, err)
	}
	if f := EnvFiles(c); len(f) != 1 || f[0] != (EnvFile{"v", "d/f"}) {
		t.Errorf("files: %v", f)
	}
	for want, in := range map[string]EnvInput{
		`environment variable key "B" not found in file "d/f"`: {Files: files},
		"couldn't parse env file":                              {},
	} {
		if _, err := Env(p, &v1.Container{Env: []v1.EnvVar{from("X", "B", nil)}}, in); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

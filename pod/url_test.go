package pod

import "testing"

func TestShownURL(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "",
		"https://site.example/pods.yaml":    "https://site.example/pods.yaml",
		"https://site.example/p?token=s":    "https://site.example/p (not shown in full)",
		"https://u:s@site.example:8443/p":   "https://site.example:8443/p (not shown in full)",
		"https://s@site.example/p":          "https://site.example/p (not shown in full)",
		"https://site.example/p#s":          "https://site.example/p (not shown in full)",
		"mailto:s@site.example":             "(not shown)",
		"https://site.example/%zz?token=s":  "(not shown)",
		"https://site.example/a b?token=s1": "https://site.example/a%20b (not shown in full)",
	} {
		if got := ShownURL(text); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
}

package pod

import "net/url"

// ShownURL formats a URL for events, logs and /configz: without user, password, query and fragment,
// any of which may be a credential.
func ShownURL(text string) string {
	const hidden = "(not shown)"
	u, err := url.Parse(text)
	if err != nil || u.Opaque != "" {
		return hidden
	}
	shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
	out := shown.String()
	if u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		out += " " + hidden[:len(hidden)-1] + " in full)"
	}
	return out
}

package endpoint

// CheckHostKey says in one sentence what is wrong with a line of Options.HostKeys.
func CheckHostKey(line string) error {
	_, err := parsePin(line)
	return err
}

package endpoint

// CheckHostKey returns an error, in one sentence, if a line of Options.HostKeys is not valid.
func CheckHostKey(line string) error {
	_, err := parsePin(line)
	return err
}

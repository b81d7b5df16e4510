// Package schema reads and writes the records that Bowline keeps on a host for its next process:
// JSON with a schema version.
//
// A field that is added, removed or given another meaning makes a new version. So a file of a
// known version has no field that the process would drop, and a file of a newer version is left
// unchanged.
package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// NewerError reports that a newer Bowline wrote the record.
type NewerError struct{ Found, Known int }

func (e *NewerError) Error() string {
	return fmt.Sprintf("it has schema version %d, and this Bowline knows versions up to %d; run the newer Bowline that wrote it", e.Found, e.Known)
}

// Newer reports whether err is a NewerError.
func Newer(err error) bool {
	var newer *NewerError
	return errors.As(err, &newer)
}

// Bounds of a record: an object takes two bytes of JSON, but hundreds of bytes once decoded. The
// record of a host with 500 images, each pulled with 100 secrets, has 55,000 objects.
const (
	maxObjects = 64 << 10  // objects and lists
	maxValues  = 256 << 10 // in all of them together
)

// check counts the objects and values of a record. It also counts these characters inside of
// strings, where they do not occur in production.
func check(data []byte) error {
	objects := bytes.Count(data, []byte("{")) + bytes.Count(data, []byte("["))
	values := bytes.Count(data, []byte(","))
	if objects > maxObjects || values > maxValues {
		return fmt.Errorf("it has %d objects and %d values, and the most are %d and %d", objects, values, maxObjects, maxValues)
	}
	return nil
}

// Decode reads a record whose schema version is at most known. Version 0 has no version field;
// the first releases wrote it. On an error into stays unchanged, except on a NewerError: then it
// has the fields that this version knows, for display only.
func Decode(data []byte, known int, into any) error {
	if err := check(data); err != nil {
		return err
	}
	var header struct {
		SchemaVersion int `json:"schemaVersion"`
	}
	if err := json.Unmarshal(data, &header); err != nil {
		return err
	}
	switch v := header.SchemaVersion; {
	case v > known:
		_ = json.Unmarshal(data, into) // as much as can be displayed
		return &NewerError{Found: v, Known: known}
	case v < 0:
		return fmt.Errorf("schema version %d does not exist", v)
	case v == 0:
		return json.Unmarshal(data, into)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the record")
	}
	return nil
}

// Blank reports whether a file holds only spaces or NULs. A power cut leaves NULs in a file
// whose content had not reached the disk.
func Blank(data []byte) bool { return len(bytes.Trim(data, " \t\r\n\x00")) == 0 }

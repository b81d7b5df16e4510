package pod

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// Bounds of the quantities that a host may name. resource.Quantity computes with all digits of a
// number: it would make two billion of "1e2000000000". The API server caps quantities at 2^63-1.
const (
	maxQuantityDigits  = 400
	maxExponentDigits  = 3
	shownQuantityBytes = 40
)

// CheckQuantities returns an error if a string or a number in the JSON value is a quantity that
// takes more memory and time than its text. Whatever comes from a host is checked before it is
// decoded into a resource.Quantity.
func CheckQuantities(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var value any
	if err := d.Decode(&value); err != nil {
		return err
	}
	return checkQuantities(value)
}

func checkQuantities(value any) error {
	switch value := value.(type) {
	case string:
		return checkQuantity(value)
	case json.Number:
		return checkQuantity(value.String())
	case []any:
		for _, v := range value {
			if err := checkQuantities(v); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, v := range value {
			if err := checkQuantities(v); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkQuantity(text string) error {
	if unboundedQuantity(text) {
		return fmt.Errorf("quantity %.*q is out of bounds", shownQuantityBytes, text)
	}
	return nil
}

// unboundedQuantity reports whether a text has the form of a quantity, with too many digits in the
// number or in its exponent.
func unboundedQuantity(text string) bool {
	text = strings.TrimLeft(strings.TrimSpace(text), "+-") // the decoder trims as well
	suffix := strings.TrimLeft(text, "0123456789.")
	digits := len(text) - len(suffix) // may be 0: the API accepts an exponent without a number
	exponent := strings.TrimLeft(suffix, "eE")
	exponent = strings.TrimLeft(exponent, "+-")
	exponent = strings.TrimLeft(exponent, "0")
	switch {
	case suffix == "" || len(suffix) <= 2 && strings.Trim(suffix, "numkKMGTPEi") == "":
		return digits > maxQuantityDigits
	case (suffix[0] == 'e' || suffix[0] == 'E') && strings.Trim(exponent, "0123456789") == "":
		return digits > maxQuantityDigits || len(exponent) > maxExponentDigits
	default: // not a quantity
		return false
	}
}

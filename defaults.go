package gobridge

import (
	"encoding"
	"fmt"
	"reflect"
	"strconv"
	"time"
)

// SetDefaults gives every zero field of a struct the value of its default tag and
// returns the struct. It enters nested structs, slices of structs and pointers to
// structs, never an interface. Fields whose default is derived are left alone. A
// tag that does not fit its field is a programming error and panics.
func SetDefaults[T any](v *T) *T {
	setDefaults(reflect.ValueOf(v).Elem())
	return v
}

func setDefaults(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			setDefaults(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			setDefaults(v.Index(i))
		}
	case reflect.Struct:
		t := v.Type()
		for i := range t.NumField() {
			sf, f := t.Field(i), v.Field(i)
			if !sf.IsExported() {
				continue
			}
			def := sf.Tag.Get("default")
			if def == "" || sf.Tag.Get("derived") == "true" {
				setDefaults(f)
				continue
			}
			if !f.IsZero() {
				continue
			}
			if err := setText(f, def); err != nil {
				panic(fmt.Sprintf("gobridge: default of %s.%s: %v", t, sf.Name, err))
			}
		}
	}
}

// setText sets a scalar field, or a pointer to one, from its default tag.
func setText(f reflect.Value, text string) error {
	if f.Kind() == reflect.Pointer {
		p := reflect.New(f.Type().Elem())
		if err := setText(p.Elem(), text); err != nil {
			return err
		}
		f.Set(p)
		return nil
	}
	if u, ok := f.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	if f.Type() == reflect.TypeFor[time.Duration]() {
		d, err := time.ParseDuration(text)
		f.SetInt(int64(d))
		return err
	}
	switch f.Kind() {
	case reflect.String:
		f.SetString(text)
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		f.SetBool(b)
		return err
	case reflect.Int, reflect.Int64:
		n, err := strconv.ParseInt(text, 10, f.Type().Bits())
		f.SetInt(n)
		return err
	case reflect.Float64:
		n, err := strconv.ParseFloat(text, 64)
		f.SetFloat(n)
		return err
	default:
		return fmt.Errorf("no text form of %s", f.Type())
	}
	return nil
}

package gobridge

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// CheckTags reports the fields of a struct whose values break their enum, min and
// max tags. It enters nested structs, slices of structs and pointers to structs,
// never an interface. Paths are made of yaml names and begin with prefix. Numbers
// and durations are at least 0 without a min tag. Unset pointers and empty strings
// pass: defaults are completed before.
func CheckTags(v any, prefix string, report Report) {
	checkTags(reflect.ValueOf(v), reflect.StructField{}, prefix, report)
}

func checkTags(v reflect.Value, sf reflect.StructField, path string, report Report) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			checkTags(v.Elem(), sf, path, report)
		}
	case reflect.Slice:
		for i := range v.Len() {
			checkTags(v.Index(i), reflect.StructField{}, path+"["+strconv.Itoa(i)+"]", report)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
			if f.IsExported() && name != "" {
				checkTags(v.Field(i), f, join(path, name), report)
			}
		}
	case reflect.String:
		if s := v.String(); s != "" {
			checkEnum(s, strconv.Quote(s), sf.Tag.Get("enum"), path, report)
		}
	case reflect.Int, reflect.Int64:
		n := v.Int()
		shown := fmt.Sprint(v.Interface())
		if enum := sf.Tag.Get("enum"); enum != "" {
			checkEnum(strconv.FormatInt(n, 10), shown, enum, path, report)
			return
		}
		if _, ok := v.Interface().(time.Duration); ok && n < 0 {
			report(path, "must not be negative, but is "+shown, "write a duration such as 30s")
			return
		}
		checkRange(float64(n), shown, sf, path, report)
	case reflect.Float64:
		checkRange(v.Float(), strconv.FormatFloat(v.Float(), 'g', -1, 64), sf, path, report)
	}
}

func checkEnum(value, shown, enum, path string, report Report) {
	if enum == "" {
		return
	}
	for allowed := range strings.SplitSeq(enum, ",") {
		if value == allowed {
			return
		}
	}
	report(path, shown+" is not allowed", "write one of "+strings.ReplaceAll(enum, ",", ", "))
}

func checkRange(n float64, shown string, sf reflect.StructField, path string, report Report) {
	low, high := bound(sf, "min", 0), bound(sf, "max", math.Inf(1))
	// Written so that NaN is out of every range.
	if n >= low && n <= high && !math.IsInf(n, 0) {
		return
	}
	want := "at least " + strconv.FormatFloat(low, 'f', -1, 64)
	if !math.IsInf(high, 0) {
		want = "from " + strconv.FormatFloat(low, 'f', -1, 64) + " to " + strconv.FormatFloat(high, 'f', -1, 64)
	}
	report(path, shown+" is out of range", "write a value "+want)
}

func bound(sf reflect.StructField, tag string, without float64) float64 {
	text, ok := sf.Tag.Lookup(tag)
	if !ok {
		return without
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		panic("gobridge: " + tag + " of " + sf.Name + ": " + err.Error())
	}
	return n
}

// join puts a path in front of a relative one.
func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

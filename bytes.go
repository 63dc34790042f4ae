package gobridge

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is a size. The config takes it with a unit or as a bare number of bytes:
// 1GiB, 500MB, 64KiB, 4096.
type Bytes int64

var byteUnits = []struct {
	name string
	size Bytes
}{
	{"TiB", 1 << 40},
	{"GiB", 1 << 30},
	{"MiB", 1 << 20},
	{"KiB", 1 << 10},
	{"TB", 1e12},
	{"GB", 1e9},
	{"MB", 1e6},
	{"kB", 1e3},
	{"KB", 1e3},
	{"B", 1},
}

// String is the size in the largest binary unit that divides it: 1GiB, 1000000B.
func (s Bytes) String() string {
	for _, u := range byteUnits[:4] {
		if s != 0 && s%u.size == 0 {
			return strconv.FormatInt(int64(s/u.size), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10) + "B"
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Bytes) UnmarshalText(text []byte) error {
	number, size := string(text), Bytes(1)
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(number, u.name); ok {
			number, size = strings.TrimSpace(rest), u.size
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return fmt.Errorf("%q is not a size (write 1GiB, 500MB or a number of bytes)", text)
	}
	if n > math.MaxInt64/int64(size) || n < math.MinInt64/int64(size) {
		return fmt.Errorf("%q is too large a size", text)
	}
	*s = Bytes(n) * size
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (s Bytes) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

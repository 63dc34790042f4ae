package gobridge

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// Seconds is a time in whole seconds. The config takes it as a bare number of
// seconds or as a duration with a unit (30, 30s, 12h).
type Seconds int64

// Duration converts it, saturating at the longest duration.
func (s Seconds) Duration() time.Duration {
	if int64(s) > int64(math.MaxInt64/time.Second) {
		return math.MaxInt64
	}
	return time.Duration(s) * time.Second
}

// String is a number of seconds with its unit: 30s.
func (s Seconds) String() string { return strconv.FormatInt(int64(s), 10) + "s" }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Seconds) UnmarshalText(text []byte) error {
	if n, err := strconv.ParseInt(string(text), 10, 64); err == nil {
		*s = Seconds(n)
		return nil
	}
	d, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is neither a number of seconds nor a duration (write 30, 30s or 12h)", text)
	}
	if d%time.Second != 0 {
		return fmt.Errorf("%q is not a whole number of seconds", text)
	}
	*s = Seconds(d / time.Second)
	return nil
}

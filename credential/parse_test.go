package credential

import (
	"strings"
	"testing"

	"github.com/gobridge/gobridge"
)

func TestCredentialForms(t *testing.T) {
	t.Parallel()
	secret := gobridge.NewSecret
	for name, c := range map[string]struct {
		in   string
		want gobridge.Credential
	}{
		"line":             {"edge:s3cret\n", gobridge.Credential{Username: "edge", Password: secret("s3cret")}},
		"colons and CRLF":  {"edge:a:b:c\r\n", gobridge.Credential{Username: "edge", Password: secret("a:b:c")}},
		"JSON":             {`{"username":"edge","password":"s3cret"}`, gobridge.Credential{Username: "edge", Password: secret("s3cret")}},
		"byte order mark":  {"\xEF\xBB\xBF" + `{"username":"edge"}`, gobridge.Credential{Username: "edge"}},
		"certificate only": {`{"cert":"C","key":"K"}`, gobridge.Credential{Cert: "C", Key: secret("K")}},
		"one authority":    {`{"ca":"A"}`, gobridge.Credential{CA: "A"}},
		"authorities":      {`{"ca":["A","B"],"password":"p"}`, gobridge.Credential{CA: "A\nB", Password: secret("p")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := parse([]byte(c.in))
			if err != nil || !got.Equal(c.want) {
				t.Errorf("got %+v, %v, want %+v", got, err, c.want)
			}
		})
	}
}

// What cannot be used is refused, and no part of it is quoted.
func TestBrokenCredentialsAreRefusedWithoutQuotingThem(t *testing.T) {
	t.Parallel()
	for name, in := range map[string]string{
		"nothing":           "",
		"white space":       " \n\t\n",
		"no colon":          "hunter2",
		"no user":           ":hunter2",
		"no password":       "edge:",
		"two lines":         "edge:hunter2\nhunter2:x",
		"empty object":      "{}",
		"empty values":      `{"username":"","password":""}`,
		"half an object":    `{"username":"edge","password":"hunter2`,
		"truncated":         `{"username":"edge",`,
		"two objects":       `{"password":"hunter2"}{"password":"hunter2"}`,
		"unknown field":     `{"username":"edge","passwort":"hunter2"}`,
		"number":            `{"username":"edge","password":1873650}`,
		"authority no text": `{"ca":[1873650]}`,
		"bad escape":        `{"password":"\hunter2"}`,
		"array":             `["hunter2"]`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := parse([]byte(in))
			if err == nil || !got.IsZero() {
				t.Fatalf("got %+v, %v, want an error alone", got, err)
			}
			for _, secret := range []string{"hunter2", "1873650"} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("the error quotes the file: %v", err)
				}
			}
		})
	}
}

func FuzzParseIsNeverAnonymous(f *testing.F) {
	for _, seed := range []string{"a:b", "{}", `{"username":"a"}`, `{"ca":["x"]}`, "\xEF\xBB\xBF", `{"ca":null}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if c, err := parse(data); (err == nil) == c.IsZero() {
			t.Errorf("%q gives %+v, %v", data, c, err)
		}
	})
}

// Validate an OLM bundle with the validators of its framework: `bundlecheck FOLDER`. Prints what is wrong.
package main

import (
	"fmt"
	"os"

	"github.com/operator-framework/api/pkg/manifests"
	"github.com/operator-framework/api/pkg/validation"
	"github.com/operator-framework/api/pkg/validation/errors"
	validators "github.com/operator-framework/api/pkg/validation/interfaces"
)

func main() {
	bundle, err := manifests.GetBundleFromDir(os.Args[1])
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	checks := validators.Validators{
		validation.BundleValidator, validation.ClusterServiceVersionValidator,
		validation.CustomResourceDefinitionValidator, validation.OperatorHubValidator,
	}
	failed := false
	for _, result := range checks.Validate(bundle.ObjectsToValidate()...) {
		for _, found := range append(result.Errors, result.Warnings...) {
			fmt.Println(result.Name, found.Level, found.Field, found.Error())
			failed = failed || found.Level == errors.LevelError
		}
	}
	if failed {
		os.Exit(1)
	}
}
